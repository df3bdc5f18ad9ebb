//! Registered definitions: text under the hash of its canonical form, the newest of a name by order of registration.

use ditto_contracts::{LoopName, Namespace, Revision};
use sqlx::{PgPool, Row as _, postgres::PgRow};

use super::super::{DefinitionRow, StoreError, StoreResult, rows};

const COLUMNS: &str = "namespace, name, revision, source, created_ms";

fn read(row: &PgRow) -> StoreResult<DefinitionRow> {
    let source = String::from_utf8(row.try_get("source")?);
    Ok(DefinitionRow {
        namespace: rows::id(row.try_get("namespace")?)?,
        name: rows::id(row.try_get("name")?)?,
        revision: rows::id(row.try_get("revision")?)?,
        source: source.map_err(|_| StoreError::Schema("stored definition is no text".into()))?,
        created_ms: row.try_get("created_ms")?,
    })
}

/// Registers; the same revision again becomes the newest.
pub(super) async fn put(pool: &PgPool, definition: &DefinitionRow) -> StoreResult<()> {
    const PUT: &str = "
        INSERT INTO definitions (namespace, name, revision, seq, source, created_ms)
        VALUES ($1, $2, $3, nextval('definitions_seq'), $4, now_ms())
        ON CONFLICT (namespace, name, revision) DO UPDATE SET seq = excluded.seq";
    sqlx::query(PUT)
        .bind(definition.namespace.as_str())
        .bind(definition.name.as_str())
        .bind(definition.revision.as_str())
        .bind(definition.source.as_bytes())
        .execute(pool)
        .await?;
    Ok(())
}

/// This revision, or the newest.
pub(super) async fn get(
    pool: &PgPool,
    namespace: &Namespace,
    name: &LoopName,
    revision: Option<&Revision>,
) -> StoreResult<Option<DefinitionRow>> {
    let sql = const_format(
        "SELECT {} FROM definitions WHERE namespace = $1 AND name = $2 AND ($3::text IS NULL OR revision = $3)
          ORDER BY seq DESC LIMIT 1",
    );
    let found = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(namespace.as_str())
        .bind(name.as_str())
        .bind(revision.map(|revision| revision.as_str()))
        .fetch_optional(pool)
        .await?;
    found.as_ref().map(read).transpose()
}

/// The newest of each name, by name.
pub(super) async fn list(
    pool: &PgPool,
    namespace: &Namespace,
    after: Option<&LoopName>,
    limit: u32,
) -> StoreResult<Vec<DefinitionRow>> {
    let sql = const_format(
        "SELECT DISTINCT ON (name) {} FROM definitions WHERE namespace = $1 AND ($2::text IS NULL OR name > $2)
          ORDER BY name, seq DESC LIMIT $3",
    );
    let found = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(namespace.as_str())
        .bind(after.map(|name| name.as_str()))
        .bind(i64::from(limit))
        .fetch_all(pool)
        .await?;
    found.iter().map(read).collect()
}

fn const_format(sql: &str) -> String {
    sql.replace("{}", COLUMNS)
}
