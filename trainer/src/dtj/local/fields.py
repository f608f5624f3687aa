"""Reads fields of a manifest, checks their types, and knows which ones were not read. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from dtj.errors import RecipeError


class Fields:
    """A mapping of the manifest that knows its path, and which of its fields were not read."""

    def __init__(self, path: str, raw: object) -> None:
        if not isinstance(raw, Mapping):
            raise RecipeError(f"{path or 'the job'} is {raw!r}, expected fields", fix="correct the file")
        self.path = path
        self._raw = {str(key): value for key, value in raw.items() if value is not None}
        self._unread = set(self._raw)
        self._children: list[Fields] = []

    def child(self, name: str) -> "Fields":
        """An object within this one; without fields if it is absent."""
        self._unread.discard(name)
        return self._add(Fields(self._path_of(name), self._raw.get(name, {})))

    def items(self, name: str) -> "list[Fields]":
        """The objects of a list."""
        found = [Fields(f"{self._path_of(name)}[{i}]", each) for i, each in enumerate(self._list(name))]
        return [self._add(each) for each in found]

    def container(self) -> "Fields":
        """The training container: the one with the name trainer, else the first."""
        found = self.items("containers")
        if not found:
            raise RecipeError(f"{self.path}.containers is empty", fix="write a container with args")
        chosen = next((each for each in found if each._raw.get("name") == "trainer"), found[0])
        chosen._unread.discard("name")
        return chosen

    def texts(self, name: str) -> list[str]:
        """A list of words; YAML reads some of them as numbers."""
        return [str(each) for each in self._list(name)]

    def text(self, name: str, default: str) -> str:
        self._unread.discard(name)
        return str(self._raw.get(name, default))

    def integer(self, name: str, default: int, *, least: int = 0) -> int:
        self._unread.discard(name)
        return self._integer(self._raw.get(name, default), self._path_of(name), least)

    def integers(self, name: str) -> frozenset[int]:
        """The whole numbers of a list."""
        found = enumerate(self._list(name))
        return frozenset(self._integer(each, f"{self._path_of(name)}[{i}]", 0) for i, each in found)

    def has(self, name: str) -> bool:
        """Whether the field is there; it stays unread."""
        return name in self._raw

    def peek(self, name: str) -> "Fields":
        """The object of a field, which stays unread."""
        return Fields(self._path_of(name), self._raw.get(name, {}))

    def words(self) -> Iterator[tuple[str, str]]:
        """Each field with its value as text."""
        return ((name, str(value)) for name, value in self._raw.items())

    def unread(self) -> Iterator[str]:
        """Paths of the fields that were not read, but for what Kubernetes writes into an object."""
        skipped = {"apiVersion", "kind", "status"} if not self.path else set()
        if self.path == "metadata":
            skipped = self._unread - {"labels"}
        yield from (self._path_of(name) for name in self._raw if name in self._unread - skipped)
        for each in self._children:
            yield from each.unread()

    def _add(self, found: "Fields") -> "Fields":
        self._children.append(found)
        return found

    @staticmethod
    def _integer(value: object, path: str, least: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            what = f"{path} is {value!r}, expected a whole number of at least {least}"
            raise RecipeError(what, fix="correct the file")
        return value

    def _list(self, name: str) -> Sequence[object]:
        self._unread.discard(name)
        value = self._raw.get(name, [])
        if not isinstance(value, list):
            raise RecipeError(f"{self._path_of(name)} is {value!r}, expected a list", fix="correct the file")
        return value

    def _path_of(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
