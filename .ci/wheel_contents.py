"""Fail unless the wheel holds every file of the package: wheel_contents.py WHEEL."""

import sys
from pathlib import Path
from zipfile import ZipFile

package = Path(__file__).resolve().parent.parent / "django_perfectqueue"
wanted = {
    str(file.relative_to(package.parent))
    for file in package.rglob("*")
    if file.is_file() and "__pycache__" not in file.parts
}
packed = set(ZipFile(sys.argv[1]).namelist())

missing = sorted(wanted - packed)
if missing or "django_perfectqueue/py.typed" not in packed:
    sys.exit(f"{sys.argv[1]} lacks {', '.join(missing) or 'py.typed'}")
print(f"{len(wanted)} files of the package are in the wheel")
