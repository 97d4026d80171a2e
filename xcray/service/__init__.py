"""xcray over HTTP: data sets, jobs, models, predictions.

app          create_app: everything is handed in, so tests need neither Ray nor processes
server       serve: the app with uvicorn, the supervisor, a local Ray when asked for
workers      several processes that answer on one port (each is `worker`), kept by one; listening: their sockets
protocol     HTTP/1.1 on a connection, bounded
settings     what an operator may set, by environment or command line
guard        the outer wall: request ids, hosts, origins, header limits, access log
auth         who asks: every route asks it
body         a request's JSON: limits, strict_json, schemas
problems     errors as problem documents (RFC 9457), by one table
uploads      bodies streamed to disk, half-written ones invisible
building     data sets built in child processes (ingest) under limits
predictors   loaded models, a few at a time
predicting   a predict request from its body (quick: read fast) over its rows (instances) and the desk to its reply (replies)
desk         where predictions are computed: at once, together, in threads, or not at all
heavy        what holds the interpreter for long: one piece at a time, off the event loop
sse          a job's events as a stream that resumes
readiness    whether requests are welcome: checks that may hang (which: `checks`), found lately; preloading: models before that
gauges       figures for Prometheus: of this replica; store_figures: of the store, the same from everybody
logs         what each log line says beside its event; tracing: requests as spans
"""
