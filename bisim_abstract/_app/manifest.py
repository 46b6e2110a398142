"""What files belong to a run: a manifest with the digest of each, and of the settings.

A file of a run is first written under another name, then listed with its digest, then given its
name. So a kill at any moment leaves a file that is not listed and does not count, or one that is
listed and lies there under one of its two names: `Manifest.recover` then finishes the work. What
is listed also says which files it was computed from; when one of these is made anew, so is it.

This is for accidents, edits and mixtures. It is no signature: who can write to the directory can
write a manifest that fits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bisim_abstract._base.atomic import UNFINISHED, replaceable, write_json
from bisim_abstract._base.checks import check_real
from bisim_abstract._base.lock import LOCK, holder
from bisim_abstract._base.untrusted import open_regular, parse_text, read_regular
from bisim_abstract._certificate.certificate import TIMES
from bisim_abstract.errors import FileFormatError, InvalidArgumentError

FORMAT = "bisim_abstract.Manifest"
VERSION = 1
MANIFEST = "manifest.json"
CONFIG, MODEL, ENCODER, CERTIFICATE = "config.json", "mdp.npz", "encoder.npz", "certificate.npz"
# Of a run that first tries to do without an encoder. A name of its own: a run that was killed
# must not go on with the bounds of the other attempt.
FIRST = "first-certificate.npz"
VERIFICATION, COMPARISON, CURVES = "verification.json", "comparison.json", "curves.json"
REPORT = "report.html"
NAMES = (
    *(CONFIG, MODEL, FIRST, ENCODER, CERTIFICATE),
    *(VERIFICATION, COMPARISON, CURVES, REPORT),
)
ALWAYS_ANEW = (VERIFICATION, REPORT)  # whatever lies there, a run that is resumed replaces it
STAGED = ".new-"  # before the name of a file that is whole and not yet listed
PIECE = 1 << 20  # bytes that are read at a time
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """A file of a run.

    Attributes:
        sha256: Its digest.
        made_from: Digests of the files that it was computed from, by name.
        times: Seconds that it took, by name. They are here and not in the file, so that equal
            runs have equal files.
    """

    sha256: str
    made_from: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a regular file, as hexadecimal digits.

    Args:
        path: The file.

    Raises:
        FileFormatError: If it is no regular file.
        OSError: If it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def value_digest(value: Any) -> str:
    """The SHA-256 of JSON values, however a file spaces and orders them.

    Args:
        value: The values.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class Manifest:
    """The files of a run directory.

    Args:
        folder: The directory.
        settings: The digest of the run's settings.
        files: What is listed, by name.
    """

    def __init__(
        self, folder: str | Path, settings: str, files: Mapping[str, Entry] | None = None
    ) -> None:
        self.folder, self.settings = Path(folder), settings
        self.files: dict[str, Entry] = dict(files or {})

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """That of a directory.

        Args:
            folder: The directory.

        Raises:
            InvalidArgumentError: If it holds no run.
            FileFormatError: If the manifest is missing or damaged.
        """
        path = Path(folder) / MANIFEST
        if not os.path.lexists(path):
            if not os.path.lexists(Path(folder) / CONFIG):
                raise InvalidArgumentError(f"{folder} holds no run: there is no {path}")
            raise FileFormatError(
                f"{path} is missing, which says what files belong to the run; put it back, or "
                "begin anew in another directory"
            )
        try:
            document = parse_text(read_regular(path))
            if document["format"] != FORMAT or document["version"] != VERSION:
                raise ValueError("it is of another format or version")
            if document.pop("digest") != value_digest(document):
                raise ValueError("it does not have the digest that it states")
            files = {name: Entry(**entry) for name, entry in document["files"].items()}
            settings = document["settings"]
            for name, entry in files.items():
                if name not in NAMES:
                    raise ValueError(f"it lists {name!r}, which is no file of a run")
                _check_digests(entry.sha256, *entry.made_from.values())
                if not set(entry.times) <= set(TIMES):
                    raise ValueError(f"it has other times of {name} than {' and '.join(TIMES)}")
                for time in entry.times.values():
                    check_real("a time", time)
                if not set(entry.made_from) <= set(NAMES):
                    raise ValueError(f"it says that {name} is made from other files than a run's")
            _check_digests(settings)
        except FileFormatError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"{path} is not the manifest of a run, or was altered ({error}); put it back, or "
                "begin anew in another directory"
            ) from error
        return cls(folder, settings, files)

    def save(self) -> None:
        """Write it, whole or not at all."""
        files = {name: asdict(self.files[name]) for name in NAMES if name in self.files}
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "files": files,
        }
        write_json(self.folder / MANIFEST, document | {"digest": value_digest(document)})

    # -- files that come --------------------------------------------------------------------

    def staged(self, name: str) -> Path:
        """Where a file is written before it is listed.

        Args:
            name: Its name in the end.
        """
        return self.folder / f"{STAGED}{name}"

    def land(
        self,
        name: str,
        path: Path,
        *,
        made_from: Iterable[str] = (),
        times: Mapping[str, float] | None = None,
    ) -> None:
        """List a file that is whole, then give it its name.

        Args:
            name: The name.
            path: The file as it lies in the directory now; if it is listed under that name, it is
                no longer.
            made_from: Names of the listed files that it was computed from.
            times: Seconds that it took; by default those that are listed with the file.
        """
        target = replaceable(self.folder / name)
        inputs = {each: self.files[each].sha256 for each in made_from}
        before = self.files.pop(path.name, None)
        if times is None:
            times = {} if before is None else before.times
        entry = Entry(file_digest(path), inputs, times)
        self.files[name] = entry
        self.save()
        os.replace(path, target)

    def drop(self, name: str) -> None:
        """Remove a file that the run has no longer, if there is one.

        Args:
            name: Its name.
        """
        if name in self.files:
            # In this order: what is listed and missing can be made anew.
            (self.folder / name).unlink(missing_ok=True)
            del self.files[name]
            self.save()

    def recover(self) -> None:
        """Finish what a killed writer had listed and not yet given its name; remove the rest.

        Only for whoever holds the lock of the directory.
        """
        for name in self.files:
            path = self.path_of(name)
            if path is not None and path.name != name:
                os.replace(path, replaceable(self.folder / name))
        for path in self.folder.glob(f"{STAGED}*"):
            path.unlink()

    # -- files that are there ---------------------------------------------------------------

    def path_of(self, name: str) -> Path | None:
        """Where a listed file lies: under its name, or where a writer that was killed left it.

        Args:
            name: Its name.
        """
        if name not in self.files:
            return None
        others = (x for x in (STAGED + name, FIRST) if x not in self.files)
        # Its own name once more at the end: it may have been given to it meanwhile.
        for each in (name, *others, name):
            with suppress(OSError, FileFormatError):
                if file_digest(self.folder / each) == self.files[name].sha256:
                    return self.folder / each
        return None

    def is_current(self, name: str) -> bool:
        """Whether a file is listed, is there, and was computed from what is listed now.

        Args:
            name: Its name.
        """
        return name in self.files and not self.is_stale(name) and (self.folder / name).exists()

    def is_stale(self, name: str) -> bool:
        """Whether a listed file was computed from what is no longer listed.

        Args:
            name: Its name.
        """
        return any(
            each not in self.files or self.files[each].sha256 != digest
            for each, digest in self.files[name].made_from.items()
        )

    def check(self, *, is_resumed: bool = False) -> None:
        """Refuse a directory whose files are not those that are listed.

        Args:
            is_resumed: Whether the run goes on, under its lock: what is missing, or was computed
                from what is, is then made anew.

        Raises:
            FileFormatError: If a file is missing, was altered, or is none of the run's. The
                message says what to do.
        """
        for problem in self._problems(is_resumed):
            by = None if is_resumed else holder(self.folder)
            if by is not None:
                raise FileFormatError(
                    f"a run is under way in {self.folder}, {by}, and its files are not yet what "
                    "they will be; wait for its end"
                )
            raise FileFormatError(problem)

    def _problems(self, is_resumed: bool) -> Iterator[str]:
        again = f"bisim-abstract run --resume {self.folder} makes it anew"
        for name in NAMES:
            path = self.folder / name
            is_there, is_listed = os.path.lexists(path), name in self.files
            if name in ALWAYS_ANEW and is_resumed:
                continue
            if not is_listed:
                if is_there:
                    yield f"{path} was not written by the run in {self.folder}; take it away"
                continue
            found = None if is_resumed else self.path_of(name)
            if found is not None and found != path:
                yield (
                    f"the run in {self.folder} was stopped while {name} was written; go on with it "
                    f"by bisim-abstract run --resume {self.folder}"
                )
            elif name == CONFIG and (not is_there or file_digest(path) != self.files[name].sha256):
                what = "is not as the run wrote it" if is_there else "is missing"
                yield (
                    f"{path} {what}: put it back as it was; for other settings begin a new run in "
                    "another directory"
                )
            elif not is_there:
                if not is_resumed:
                    yield f"{path} is missing; {again}"
            elif file_digest(path) != self.files[name].sha256:
                yield f"{path} is not as the run wrote it; put it back, or delete it and {again}"
            elif not is_resumed and self.is_stale(name):
                yield f"{path} was computed from other files than those beside it; {again}"

    def bonds(self, *names: str) -> dict[str, str]:
        """What a result was computed from: digests of the settings and of these files.

        Args:
            names: Those of the files that count, if they are listed.
        """
        wanted = [name for name in NAMES if name in names and name in self.files]
        found = {name: self.files[name].sha256 for name in wanted}
        return {"settings": self.settings} | found


def is_leftover(path: Path) -> bool:
    """Whether this is what a run that was killed at its beginning may leave in a directory.

    Args:
        path: Something in the directory.
    """
    name = path.name
    return name == LOCK or name.startswith(STAGED) or UNFINISHED.fullmatch(name) is not None


def check_run_of(*paths: str | Path) -> None:
    """Refuse files in the directory of a run that are not as it wrote them, or lie among such.

    Args:
        paths: Files that are read, wherever they lie; those of no run are left alone.

    Raises:
        FileFormatError: As `Manifest.check` does.
    """
    folders = {Path(path).parent for path in paths if Path(path).name in NAMES}
    for folder in sorted(folders):
        if os.path.lexists(folder / MANIFEST):
            Manifest.load(folder).check()


def _check_digests(*digests: Any) -> None:
    for each in digests:
        if not isinstance(each, str) or not DIGEST.fullmatch(each):
            raise ValueError(f"{each!r} is no digest")
