"""How the code of a folder gets into the pods: in a ConfigMap if it fits, else in a claim."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from dtj_client.errors import ClientError
from dtj_client.kube.kubectl import Json, Kubectl
from dtj_client.programs.launchers import count_processes, script_of
from dtj_client.programs.torchrun import SHELLS
from dtj_client.progress import Progress, ignore
from dtj_client.submission import archive, manifest
from dtj_client.submission import create as submission
from dtj_client.submission.archive import Archive
from dtj_client.submission.manifest import InClaim, Request
from dtj_client.submission.upload import upload

NAMED = 10  # files that are not sent
CODE_PATH = ".dtj/code"  # in a claim
Bar = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A job, and how its code gets into the pods.

    archive     None: the image has the code
    place       where the archive will be; None: in the ConfigMap
    config_map  None: the code goes into the claim
    remarks     sentences about fields of the job
    """

    job: Json
    archive: Archive | None = None
    place: InClaim | None = None
    config_map: Json | None = None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What is sent, where to, and why."""
        if self.archive is None:
            return "sending no code"
        count = len(self.archive.files)
        size = f"{count} file{'' if count == 1 else 's'}, {len(self.archive.data) / 1024:.0f} KiB"
        if self.place is None:
            return f"sending {size}, in a ConfigMap"
        why = f"a ConfigMap has at most {archive.LIMIT >> 10} KiB"
        return f"sending {size}, through claim {self.place.claim}, because {why}"

    def notes(self) -> Iterator[str]:
        """Yield a sentence about each kind of files that are not sent, and the remarks."""
        sent = self.archive
        found = (
            {
                "they look like secrets": sent.secrets,
                "they are links": sent.links,
                ".gitignore matches": sent.ignored,
            }
            if sent
            else {}
        )
        for why, paths in found.items():
            if paths:
                more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
                yield f"not sent, because {why}: {', '.join(paths[:NAMED])}{more}"
        yield from self.remarks


def quiet(_label: str) -> AbstractContextManager[Progress]:
    """Show no progress."""
    return nullcontext(ignore)


def prepare(
    request: Request,
    template: Json,
    folder: Path | None,
    extra: Mapping[str, str] | None = None,
    *,
    code: bool = True,
    claim: str = "",
    bar: Bar = quiet,
) -> Delivery:
    """Make the job, and pack what it needs. Raises ClientError.

    code   False: the image has the code, so that only `extra` is sent
    claim  for code that is too large for a ConfigMap; empty: that of the checkpoints, if the job has one
    """
    for what, useless in (
        ("requirements", request.requirements and not code),
        ("a claim for code", claim and not (code or extra)),
    ):
        if useless:
            fix = "leave it out: an image that has the code has its packages, too"
            raise ClientError(f"no code is sent, so there is no use for {what}", fix)
    if code or extra:
        made = _pack(request, template, folder if code else None, extra or {}, claim, bar)
    else:
        made = Delivery(job=manifest.job(request, with_code=False, template=template))
    readable = manifest.about_secrets(request.env, "--env-from NAME=secret/SECRET/KEY takes it from a Secret")
    return replace(made, remarks=tuple(filter(None, (count_processes(made.job["spec"]), readable))))


def _pack(
    request: Request, template: Json, folder: Path | None, extra: Mapping[str, str], claim: str, bar: Bar
) -> Delivery:
    if packages := request.requirements:
        extra = {**extra, packages.path: packages.text, **packages.others}
    if folder is not None:
        script, program = script_of(request.command), request.command[0]
        # Alone it may be a command of the image.
        if script.endswith(".py") or (script.endswith(".sh") and script != program):
            _check_file(script, folder, extra)
    job = manifest.job(request, with_code=True, template=template)
    claim = claim or _claim_of(job)
    with bar("packing") as progress:
        packed = archive.pack(folder, extra, has_claim=bool(claim), progress=progress)
    _check_program(request.command[0], packed)
    if folder is not None:
        _check_script(request.command[0], folder)
        shell, *words = request.command
        if Path(shell).name in SHELLS and words and (folder / words[0]).is_file():
            _check_line_ends(words[0], folder)
    if len(packed.data) <= archive.LIMIT:
        return Delivery(job=job, archive=packed, config_map=manifest.config_map(request, packed))
    name = f"{hashlib.sha256(packed.data).hexdigest()[:32]}.tar.gz"
    place = InClaim(claim=claim, path=f"{CODE_PATH}/{name}")
    job = manifest.job(replace(request, code_in=place), with_code=True, template=template)
    return Delivery(job=job, archive=packed, place=place)


def _check_file(program: str, folder: Path, extra: Mapping[str, str]) -> None:
    """Raise ClientError if there is no such file."""
    if program in extra or (folder / program).is_file():
        return
    where = "this folder" if folder == Path.cwd() or folder == Path() else str(folder)
    near = get_close_matches(
        program, [each.name for each in folder.glob(f"*{Path(program).suffix}")], n=1, cutoff=0.75
    )
    fix = f"did you mean {near[0]}?" if near else "change to the folder of the program, or name it"
    raise ClientError(f"there is no file {program} in {where}", fix)


def _check_program(program: str, packed: Archive) -> None:
    """Raise ClientError if a Python file would be missing in the pods."""
    if program.endswith(".py") and os.path.normpath(program) not in packed.files:
        raise ClientError(
            f"{program} does not go along: only files within the folder do, no links, and nothing that "
            ".gitignore or .dtjignore matches",
            "change to a folder that has the program and what it imports, and name it relative to that",
        )


def _check_script(program: str, folder: Path) -> None:
    """Raise ClientError for a file of the folder that would fail in the pods, where less is known."""
    file, is_named = folder / program, Path(program).suffix not in ("", ".py")
    if file.is_dir() and (program == "." or "/" in program):  # a command may have the name of a folder
        raise ClientError(f"{program} is a folder", "name the file to run: its folder goes along")
    if Path(program).is_absolute() or not is_named or not file.is_file():
        return
    if program.endswith(".ipynb"):
        fix = f"jupyter nbconvert --to script {program} makes a program of it: submit that"
        raise ClientError(f"{program} is a notebook, which does not run by itself", fix)
    if "/" not in program:
        fix = f"write ./{program} for the file of the folder, or what runs it, such as: bash {program}"
        raise ClientError(f"{program} is not a command of the image", fix)
    if not os.access(file, os.X_OK):
        fix = f"chmod +x {program}, or name what runs it, such as: bash {program}"
        raise ClientError(f"{program} is not executable", fix)
    _check_line_ends(program, folder, begin=b"#!")


def _check_line_ends(program: str, folder: Path, *, begin: bytes = b"") -> None:
    """Raise ClientError for a script of a shell that was written on Windows, if it begins like this."""
    with (folder / program).open("rb") as opened:
        first = opened.readline(256)
    if first.startswith(begin) and first.endswith(b"\r\n"):
        raise ClientError(f"{program} has the line ends of Windows", f"sed -i 's/\\r$//' {program}")


def submit(kubectl: Kubectl, delivery: Delivery, bar: Bar = quiet) -> Json:
    """Copy the code if it goes into a claim, create the job, and return it as stored. Raises ClientError."""
    if delivery.place and delivery.archive:
        with bar("copying") as progress:
            upload(kubectl, delivery.job, delivery.place, delivery.archive.data, progress)
    return submission.create(kubectl, delivery.job, delivery.config_map)


def _claim_of(job: Json) -> str:
    """The claim of the checkpoints, named by an option or by the template."""
    volume = (job["spec"].get("checkpoint") or {}).get("volume") or {}
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))
