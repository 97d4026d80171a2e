"""The HTTP layer: edge, access, authentication, limits, bodies, problem documents."""
