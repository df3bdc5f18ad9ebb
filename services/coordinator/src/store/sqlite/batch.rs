//! Set-based statements: one text for several rows of parameters, in a few fixed sizes so that they stay prepared.

use sqlx::{
    Arguments as _, AssertSqlSafe, Encode, Sqlite, SqliteConnection, Type,
    sqlite::{SqliteArguments, SqliteRow},
};

/// Rows of one statement, from large to small.
const SIZES: [usize; 4] = [64, 16, 4, 1];

/// Parameters in order.
#[derive(Default)]
pub(super) struct Bind {
    args: SqliteArguments,
    error: Option<sqlx::Error>,
}

impl Bind {
    /// The next parameter.
    pub(super) fn add<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.args.add(value) {
            self.error.get_or_insert(sqlx::Error::Encode(error));
        }
        self
    }
}

fn bound<T>(items: &[T], bind: impl Fn(&mut Bind, &T)) -> sqlx::Result<SqliteArguments> {
    let mut binding = Bind::default();
    for item in items {
        bind(&mut binding, item);
    }
    match binding.error {
        Some(error) => Err(error),
        None => Ok(binding.args),
    }
}

/// Runs `sql` over all items, `{rows}` standing for `(?, …), (?, …)` with `columns` parameters each, and returns what
/// it returns, in no particular order.
pub(super) async fn each<T: Sync>(
    connection: &mut SqliteConnection,
    sql: &'static str,
    columns: usize,
    items: &[T],
    bind: impl Fn(&mut Bind, &T) + Send + Sync,
) -> sqlx::Result<Vec<SqliteRow>> {
    let mut rest = items;
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let size = SIZES.into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
        let (now, later) = rest.split_at(size);
        rest = later;
        let binding = bound(now, &bind)?;
        let found = sqlx::query_with(AssertSqlSafe(expand(sql, columns, size)), binding);
        let found = found.fetch_all(&mut *connection).await?;
        if rows.is_empty() { rows = found } else { rows.extend(found) }
    }
    Ok(rows)
}

fn expand(sql: &str, columns: usize, size: usize) -> String {
    let mut row = String::with_capacity(2 * columns + 2);
    row.push_str("(?");
    row.push_str(&",?".repeat(columns.saturating_sub(1)));
    row.push_str("),");
    let mut rows = row.repeat(size);
    rows.pop();
    sql.replace("{rows}", &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_parameters_is_repeated() {
        assert_eq!(expand("VALUES {rows}", 3, 2), "VALUES (?,?,?),(?,?,?)");
        assert_eq!(expand("VALUES {rows}", 1, 1), "VALUES (?)");
    }
}
