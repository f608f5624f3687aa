"""Takes a block of 31 MiB from the C library and frees it; prints where it was, and whether it is kept."""

import ctypes

BLOCK = 31 << 20


class Mallinfo2(ctypes.Structure):
    """See malloc.h; `hblks`: blocks with their own mmap, `keepcost`: free bytes at the end of the heap."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    _fields_ = [(name, ctypes.c_size_t) for name in (*_names, "keepcost")]


libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Mallinfo2

before = libc.mallinfo2().hblks
block = libc.malloc(BLOCK)
is_on_heap = libc.mallinfo2().hblks == before
libc.free(block)
print("on the heap:", is_on_heap, "kept:", libc.mallinfo2().keepcost >= BLOCK)
