#!/bin/sh
# Removes from the environment $1 what no process of xcray opens: tests, headers, Java, C++, reinforcement learning.
# `python -m tests.image` trains, asks and opens Ray's dashboard in the image afterwards, so a thing too many would be seen.
set -eu
cd "$1"/lib/python3.*/site-packages
find numba numpy pyarrow scipy sklearn -type d -name tests -prune -exec rm -rf {} +
rm -rf ray/jars ray/rllib ray/llm ray/cpp ray/include
rm -rf pyarrow/include pyarrow/src numpy/_core/include numpy/_core/lib
rm -f pyarrow/*flight* # Arrow over gRPC
find . -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' -o -name '*.pyx' \) -delete
