# MuJoCo ships its classes in compiled modules without type stubs; to pyright they are Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
