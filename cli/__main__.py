"""``python -m postroad.cli``: the command without its entry point, for the children of ``postroad up``."""

from .main import main

main()
