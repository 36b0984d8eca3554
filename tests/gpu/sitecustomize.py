"""The run uses what it has built, also in an environment where the package is installed in place."""

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
