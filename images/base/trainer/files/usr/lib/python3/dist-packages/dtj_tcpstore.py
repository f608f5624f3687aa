"""Lets unchanged programs open a TCPStore on a torch that was built without libuv.

torch uses its libuv server by default, and Debian's torch is built without it. Some callers inside torch, such
as torchrun, have no option to choose the other server. If opening a store fails for this reason, it is opened
again with the server that every torch has. If torch has libuv, this module changes nothing.

dtj-tcpstore.pth loads this module at every start of Python, so it must be cheap: it does not import torch, it
only hooks into the import of torch.distributed.
"""

import sys
from importlib.machinery import PathFinder


class AwaitDistributed:
    """An import finder that patches torch.distributed when it is loaded, and then removes itself."""

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
