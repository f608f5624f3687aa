"""Lets unchanged programs open a TCPStore on a torch that was built without libuv.

torch asks for its libuv server unless told otherwise, Debian's torch does not have it, and not every
caller of torch's own (torchrun among them) can be told otherwise. A store that fails for that reason is
opened once more with the server that every torch has. Where libuv is built in, nothing ever happens here.

Loaded at start-up by dtj-tcpstore.pth, so it must cost nothing: torch is not imported, only awaited.
"""

import sys
from importlib.machinery import PathFinder


class AwaitDistributed:
    """An import finder that adapts torch.distributed once it is loaded, and then steps aside."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if hasattr(module, "TCPStore"):
                adapt(module.TCPStore)

        spec.loader.exec_module = exec_module
        return spec


def adapt(store):
    """Make a TCPStore fall back to the server without libuv."""
    plain = store.__init__

    def open_store(self, *args, **kwargs):
        try:
            plain(self, *args, **kwargs)
        except RuntimeError as error:
            if "without libuv" not in str(error):
                raise
            plain(self, *args, **{**kwargs, "use_libuv": False})

    store.__init__ = open_store


sys.meta_path.insert(0, AwaitDistributed())
