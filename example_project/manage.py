#!/usr/bin/env python3
"""Chartroom's commands: python3 example_project/manage.py pq_worker."""

import sys

from chartroom.environment import enter

if __name__ == "__main__":
    enter()
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
