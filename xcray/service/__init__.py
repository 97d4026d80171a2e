"""xcray over HTTP: data sets, jobs, models and predictions.

app            create_app: dependencies are passed in, so tests need neither Ray nor processes
app_state      the state that routes use
settings       settings of operators, by environment variable or command line
openapi        completes the description at /openapi.json
ray_serve      the service as a Ray Serve application
http           edge and access middleware, authentication, limits, bodies, problem documents
routes         REST endpoints; schemas: their request and reply models
prediction     decoding, micro-batching, inference and encoding of predict requests
inference_v2   the Open Inference Protocol, version 2
models         loaded models, versions and traffic, synchronisation with object storage
datasets       uploads, and builds of data sets in child processes
processes      server, worker processes, job supervision and maintenance
observability  metrics, readiness, request logs and traces
"""
