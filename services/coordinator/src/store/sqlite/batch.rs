//! Set-based statements: one text for several rows of parameters, in a few fixed sizes so that they stay prepared.

use std::ops::Range;

use sqlx::{
    Arguments as _, AssertSqlSafe, Encode, Row as _, Sqlite, SqliteConnection, Type,
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

/// Beyond this a text is split, so that texts in the cache of statements stay small.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// Rows of a statement in [`Reads`] and [`Writes`]: few sizes, so that few texts have to be prepared. What is missing is
/// filled up with NULL, which the statements take no notice of.
fn padded(count: usize) -> usize {
    count.next_power_of_two().min(64)
}

/// Statements with their parameters, for one exchange.
#[derive(Default)]
pub(super) struct Query {
    text: String,
    bind: Bind,
}

impl Query {
    fn rows<T>(&mut self, sql: &str, columns: usize, items: &[T], bind: &impl Fn(&mut Bind, &T)) {
        let size = padded(items.len());
        self.text.push_str(&expand(sql, columns, size));
        for item in items {
            bind(&mut self.bind, item);
        }
        for _ in items.len() * columns..size * columns {
            self.bind.add(None::<i64>);
        }
    }

    /// Runs the statements, and `after`. An error stops where it is.
    pub(super) async fn run(
        self,
        connection: &mut SqliteConnection,
        after: &'static str,
    ) -> sqlx::Result<Vec<SqliteRow>> {
        if let Some(error) = self.bind.error {
            return Err(error);
        }
        let mut text = self.text;
        text.push_str(after);
        sqlx::query_with(AssertSqlSafe(text), self.bind.args).fetch_all(connection).await
    }

    /// Runs `before` and then the statement, which returns one row. That it has no second one is not waited for.
    pub(super) async fn one(self, connection: &mut SqliteConnection, before: &'static str) -> sqlx::Result<SqliteRow> {
        if let Some(error) = self.bind.error {
            return Err(error);
        }
        let mut text = self.text;
        text.insert_str(0, before);
        sqlx::query_with(AssertSqlSafe(text), self.bind.args).fetch_one(connection).await
    }
}

/// Queries of one text each (`group_concat` over rows that end with `;`), read together after the clock.
pub(super) struct Reads {
    queries: Vec<Query>,
    places: Vec<(usize, usize)>,
    column: usize,
}

impl Reads {
    /// Reads only the clock.
    pub(super) fn new() -> Self {
        let text = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)".to_owned();
        Self { queries: vec![Query { text, ..Query::default() }], places: Vec::new(), column: 1 }
    }

    /// Adds a query over all items, as in [`each`].
    pub(super) fn add<T>(
        &mut self,
        sql: &'static str,
        columns: usize,
        items: &[T],
        bind: impl Fn(&mut Bind, &T),
    ) -> Range<usize> {
        let start = self.places.len();
        for items in items.chunks(64) {
            if self.queries.last().is_none_or(|query| query.text.len() > TEXT_BYTES_MAX) {
                self.queries.push(Query { text: "SELECT NULL".to_owned(), ..Query::default() });
                self.column = 1;
            }
            self.places.push((self.queries.len() - 1, self.column));
            self.column += 1;
            if let Some(query) = self.queries.last_mut() {
                query.text.push_str(",(");
                query.rows(sql, columns, items, &bind);
                query.text.push(')');
            }
        }
        start..self.places.len()
    }

    /// The queries, and where each answer is found: row and column.
    pub(super) fn finish(self) -> (Vec<Query>, Vec<(usize, usize)>) {
        (self.queries, self.places)
    }
}

/// What [`Reads`] found.
pub(super) struct Found {
    rows: Vec<SqliteRow>,
    places: Vec<(usize, usize)>,
}

impl Found {
    pub(super) const fn new(rows: Vec<SqliteRow>, places: Vec<(usize, usize)>) -> Self {
        Self { rows, places }
    }

    /// The rows of one query as texts.
    pub(super) fn texts(&self, of: &Range<usize>) -> sqlx::Result<Vec<&str>> {
        let mut texts = Vec::new();
        for (row, column) in self.places.get(of.clone()).unwrap_or_default() {
            let row = self.rows.get(*row).ok_or(sqlx::Error::RowNotFound)?;
            if let Some(text) = row.try_get::<Option<&str>, _>(*column)? {
                texts.extend(text.split(';').filter(|text| !text.is_empty()));
            }
        }
        Ok(texts)
    }
}

/// Statements that write, in order.
#[derive(Default)]
pub(super) struct Writes(Vec<Query>);

impl Writes {
    /// Adds a statement over all items, as in [`each`]; rows of NULL must do nothing.
    pub(super) fn add<T>(&mut self, sql: &'static str, columns: usize, items: &[T], bind: impl Fn(&mut Bind, &T)) {
        for items in items.chunks(64) {
            if self.0.last().is_none_or(|query| query.text.len() > TEXT_BYTES_MAX) {
                self.0.push(Query::default());
            }
            if let Some(query) = self.0.last_mut() {
                if !query.text.is_empty() {
                    query.text.push(';');
                }
                query.rows(sql, columns, items, &bind);
            }
        }
    }

    /// Runs them within the transaction of `connection`.
    pub(super) async fn run(self, connection: &mut SqliteConnection) -> sqlx::Result<Vec<SqliteRow>> {
        let mut rows = Vec::new();
        for query in self.0 {
            rows.extend(query.run(&mut *connection, "").await?);
        }
        Ok(rows)
    }

    /// The exchanges to run them with.
    pub(super) fn finish(self) -> Vec<Query> {
        self.0
    }
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
