"""HTTP layer: edge, access, authentication, limits, bodies and problem documents."""
