"""What a backend is: everything that differs from one kind of target to another. `superkernel.backends` has them.

Model: the pipeline (`compilation/pipeline.py`) is the same for all kinds and asks a backend at each stage; its
`Planner` has what is needed up to a plan, and is imported only where a plan has to be made. What comes out is a
`Compilation`, and a `Kernel` that runs it, reports on it and saves it: both are the backend's own classes.

Invariants: a backend holds nothing that belongs to one compilation; `verify` shares no code with the planner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from superkernel.compilation.compiled import Compilation, CompiledImage, Executable, Job, Planned, Proof
from superkernel.core.errors import UnsupportedError
from superkernel.target.base import Target

if TYPE_CHECKING:
    from superkernel.codegen.cache import ObjectCache
    from superkernel.compilation.library import Library
    from superkernel.compilation.planner import AnyPlanner
    from superkernel.compilation.stages import Stages
    from superkernel.core.errors import Violation
    from superkernel.core.options import Options
    from superkernel.scheduler.kernel_table import KernelTable

TargetT = TypeVar("TargetT", bound=Target)
PlannedT = TypeVar("PlannedT", bound="Planned[Any]")
CertificateT = TypeVar("CertificateT", bound=Proof)
ImageT = TypeVar("ImageT", bound=CompiledImage)
CompiledT = TypeVar("CompiledT", bound="Compilation[Any, Any]")


class Backend(ABC, Generic[TargetT, PlannedT, CertificateT, ImageT, CompiledT]):
    """See the module docstring."""

    plan_type: ClassVar[type | None] = None
    """Of plans that are kept in the cache of compiled objects: for where planning takes long beside the rest."""
    generator: ClassVar[tuple[str, ...]] = ()
    """The package's sources that decide what code a plan becomes, and how its constants are packed."""
    fallbacks_run: ClassVar[str]
    """Where NumPy computes what has no kernel, in the words of a warning."""

    compiled: type[CompiledT]
    """What a compilation leaves behind."""

    # Which targets ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names by which users ask for targets of this kind."""

    @abstractmethod
    def named(self, name: str) -> TargetT | None:
        """The target of a name, or of a file's path where this kind has descriptions in files; None: it is none of
        this kind. Raises InputError, FileFormatError on a description that is wrong."""

    def local_target(self, told: Mapping[str, Any] | None = None) -> TargetT | None:
        """The target that a saved kernel of this kind is for on the machine that reads it; None: there are none.
        `told`: what `local_record` said where it was saved, by which the target is found sooner."""
        return None

    def local_record(self, target: TargetT) -> Mapping[str, Any]:
        """Plain data of the local target."""
        return {}

    @abstractmethod
    def cores(self, target: TargetT, threads: int | None) -> int:
        """Cores to compile for. `threads`: what the user asked for, None: as many as there are."""

    @abstractmethod
    def refusals(self, target: TargetT, options: Options, threads: int | None) -> list[Violation]:
        """What was asked for and cannot be had on this target."""

    @property
    @abstractmethod
    def kernels(self) -> KernelTable[TargetT]:
        """The kernels of this kind of target, and how each cuts its work."""

    def settled(self, job: Job[TargetT], cache: ObjectCache, compiled: Callable[[Options], CompiledT]) -> Options:
        """The options that a job is planned with, where some of them are found out by trying. `compiled`: the graph
        under other options."""
        return job.options

    def of_one_object(self) -> Self:
        """This backend for the kernels of one object, one graph in several sizes: they share what they can."""
        return self

    # Stages -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def planner(self, job: Job[TargetT]) -> AnyPlanner[TargetT, PlannedT]:
        """What plans a job."""

    @abstractmethod
    def verify(self, planned: PlannedT) -> CertificateT:
        """Prove a plan. Raises VerificationError with every violation."""

    @abstractmethod
    def emit(self, run: Stages, job: Job[TargetT], planned: PlannedT, cache: ObjectCache) -> ImageT:
        """The code of a plan, laid out with its constants."""

    def attest(self, job: Job[TargetT], planned: PlannedT, image: ImageT, proved: CertificateT) -> CertificateT:
        """The certificate of an image, `proved` its plan's: the same, where nothing can be asked of the image itself.
        Raises VerificationError where it is not what was proved."""
        return proved

    @abstractmethod
    def bind(self, job: Job[TargetT], planned: PlannedT, image: ImageT, proved: CertificateT) -> Executable:
        """The image where it will run. `proved`: its certificate."""

    # What becomes of it -----------------------------------------------------------------------------------------------

    def export(
        self, models: Mapping[str, Sequence[CompiledT]], path: Path, manifest: Sequence[str], compiler: str | None
    ) -> Library:
        """Compilations, by the names of their models, as a library for programs that are not Python; see
        `superkernel.export`. Raises UnsupportedError on targets that have none."""
        hint = "save an accelerator's kernel as an .elf file, which its own tools load"
        raise UnsupportedError("libraries are of kernels for the host", location=f"file {str(path)!r}", hint=hint)


AnyBackend: TypeAlias = Backend[Any, Any, Any, Any, Any]
