BEGIN TRANSACTION;
CREATE TABLE audit (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	time TEXT NOT NULL,
	tenant TEXT NOT NULL,
	key_id TEXT,
	action TEXT NOT NULL,
	subject TEXT NOT NULL,
	detail JSON NOT NULL,
	request_id TEXT
);
CREATE TABLE counters (
	name TEXT NOT NULL,
	labels TEXT NOT NULL,
	value FLOAT NOT NULL,
	PRIMARY KEY (name, labels)
);
CREATE TABLE datasets (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	tenant TEXT NOT NULL,
	name TEXT NOT NULL,
	path TEXT NOT NULL,
	status TEXT NOT NULL,
	stats JSON NOT NULL,
	created TEXT NOT NULL,
	idempotency_key TEXT,
	digest TEXT,
	version INTEGER DEFAULT '1' NOT NULL,
	UNIQUE (id)
);
CREATE TABLE duties (
	name TEXT NOT NULL,
	owner TEXT,
	beats INTEGER NOT NULL,
	term INTEGER NOT NULL,
	lease_seconds FLOAT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE events (
	job_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	time TEXT NOT NULL,
	kind TEXT NOT NULL,
	data JSON NOT NULL,
	PRIMARY KEY (job_id, seq)
);
CREATE TABLE feedback (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	tenant TEXT NOT NULL,
	model TEXT NOT NULL,
	id TEXT NOT NULL,
	version INTEGER NOT NULL,
	content JSON NOT NULL,
	key_id TEXT,
	created TEXT NOT NULL,
	UNIQUE (tenant, model, id)
);
CREATE TABLE jobs (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	tenant TEXT NOT NULL,
	name TEXT NOT NULL,
	spec JSON NOT NULL,
	digest TEXT NOT NULL,
	idempotency_key TEXT,
	status TEXT NOT NULL,
	phase TEXT NOT NULL,
	reason TEXT,
	message TEXT,
	attempt INTEGER NOT NULL,
	priority INTEGER NOT NULL,
	progress JSON NOT NULL,
	result JSON,
	stop_requested BOOLEAN NOT NULL,
	owner TEXT,
	lease_seconds FLOAT,
	not_before FLOAT NOT NULL,
	losses INTEGER NOT NULL,
	advanced BOOLEAN NOT NULL,
	events INTEGER NOT NULL,
	created TEXT NOT NULL,
	started TEXT,
	finished TEXT,
	kind TEXT DEFAULT 'train' NOT NULL,
	key_id TEXT,
	beats INTEGER DEFAULT '0' NOT NULL,
	timeout_seconds FLOAT,
	ran_seconds FLOAT DEFAULT '0' NOT NULL,
	expires FLOAT,
	max_attempts INTEGER,
	model TEXT,
	dataset_id TEXT,
	UNIQUE (tenant, idempotency_key),
	UNIQUE (id)
);
CREATE TABLE keys (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL,
	tenant TEXT NOT NULL,
	name TEXT NOT NULL,
	scopes JSON NOT NULL,
	digest TEXT NOT NULL,
	created TEXT NOT NULL,
	expires FLOAT,
	revoked TEXT,
	last_used TEXT,
	limits JSON NOT NULL,
	UNIQUE (id),
	UNIQUE (digest)
);
CREATE TABLE store_schema (
	revision INTEGER NOT NULL,
	oldest INTEGER NOT NULL
);
INSERT INTO "store_schema" VALUES(1,1);
CREATE TABLE turns (
	tenant TEXT NOT NULL,
	turn INTEGER NOT NULL,
	PRIMARY KEY (tenant)
);
CREATE INDEX jobs_queue ON jobs (status, priority, tenant, seq);
CREATE INDEX jobs_list ON jobs (tenant, seq, status, kind, priority, created, name, model, dataset_id);
CREATE INDEX jobs_expires ON jobs (status, expires) WHERE expires IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (finished) WHERE finished IS NOT NULL;
CREATE INDEX jobs_tenant_status ON jobs (tenant, status, seq);
CREATE INDEX datasets_tenant ON datasets (tenant, seq);
CREATE UNIQUE INDEX datasets_key ON datasets (tenant, idempotency_key);
CREATE INDEX feedback_model ON feedback (tenant, model, seq);
CREATE INDEX audit_tenant ON audit (tenant, seq);
COMMIT;
