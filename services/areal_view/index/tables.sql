-- Tables of the index; what stands in braces is a constant of the code.
CREATE TABLE files(file TEXT PRIMARY KEY, done INTEGER);
CREATE TABLE samples(id INTEGER PRIMARY KEY AUTOINCREMENT, g INTEGER, i INTEGER, reward REAL, tokens INTEGER,
  version INTEGER, outcome INTEGER, evaluation TEXT, file TEXT, offset INTEGER);
CREATE INDEX samples_by_key ON samples(evaluation, g, i);
CREATE INDEX samples_by_reward ON samples(evaluation, reward);
CREATE INDEX samples_by_version ON samples(evaluation, version);
CREATE INDEX samples_by_outcome ON samples(evaluation, outcome);
CREATE TABLE contents(sample INTEGER PRIMARY KEY, figures TEXT);
CREATE TABLE figure_values(evaluation TEXT, name TEXT, value REAL, sample INTEGER,
  PRIMARY KEY(evaluation, name, value, sample)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(question, answer, content='', tokenize='{TOKENIZER}');
CREATE TABLE counts(file TEXT, evaluation TEXT, outcome INTEGER, rows INTEGER, reward REAL);
CREATE TABLE steps(step INTEGER, fence INTEGER, reward REAL, tokens INTEGER, file TEXT, offset INTEGER);
CREATE INDEX steps_by_step ON steps(step, fence);
CREATE TABLE groups(g INTEGER, step INTEGER, fence INTEGER, samples INTEGER, mean REAL, low REAL, high REAL,
  tokens INTEGER, age INTEGER, mismatch REAL, file TEXT);
CREATE INDEX groups_by_group ON groups(g);
CREATE INDEX groups_by_step ON groups(step, fence);
CREATE TABLE tokens(step INTEGER, fence INTEGER, first INTEGER, last INTEGER, file TEXT, offset INTEGER);
CREATE INDEX tokens_by_step ON tokens(step, fence);
