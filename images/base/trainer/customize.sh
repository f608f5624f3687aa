#!/bin/sh
# Run by mmdebstrap with the new root as its argument, once all packages are there.
#
# Some packages (sympy for one) come out of it without compiled modules. A container that may not write would compile
# them anew at every start of a rank, which takes seconds.
set -eu
chroot "$1" python3 -m compileall -q -j 2 /usr/lib/python3/dist-packages || true # a file for another Python stays as it is
