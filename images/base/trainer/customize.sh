#!/bin/sh
# mmdebstrap runs this script after installing all packages, with the new root directory as its argument.
#
# Some packages (for example sympy) are installed without compiled modules. A container with a read-only root file system
# would compile them again at every start of a rank, which takes seconds.
set -eu
chroot "$1" python3 -m compileall -q -j 2 /usr/lib/python3/dist-packages || true # skips files for another Python version
