"""Whether an image can import what the run imported: in a container, under bubblewrap, or by metadata alone."""

from envbuild.verify.imports.checking import Imports, Question, check_imports
from envbuild.verify.imports.metadata import check_metadata
from envbuild.verify.imports.names import import_names
from envbuild.verify.imports.places import Place, place_for

__all__ = ["Imports", "Place", "Question", "check_imports", "check_metadata", "import_names", "place_for"]
