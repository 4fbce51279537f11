#!/usr/bin/env python3
"""Chartroom in one go: python3 example_project/demo.py --help."""

import sys

from chartroom.environment import enter

if __name__ == "__main__":
    enter()
    from tour import main

    sys.exit(main())
