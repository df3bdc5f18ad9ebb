//! What is wrong with a definition, where, and what was expected instead.

use std::fmt::Write as _;

use serde::Serialize;

/// A place in the text of a definition. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
}

/// One problem of a definition. Serialises as the JSON form that the API and `--json` show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// Line in the source, from 1.
    pub line: usize,
    /// Column in the source, in characters, from 1.
    pub column: usize,
    /// Where in the definition, e.g. `graph.tasks.read.with.call.id`; empty for the whole document.
    pub path: String,
    /// What was found.
    pub message: String,
    /// What is expected there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expected: String,
}

impl Diagnostic {
    pub(crate) fn new(
        at: Place,
        path: impl Into<String>,
        message: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self { line: at.line, column: at.column, path: path.into(), message: message.into(), expected: expected.into() }
    }

    /// The problem as people read it: place, message, the line it stands on with a caret, what was expected.
    /// Plain text of several lines, ending with a line break.
    pub fn render(&self, source_name: &str, source: &str) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{source_name}:{}:{}: {}", self.line, self.column, self.headline());
        if let Some(line) = self.line.checked_sub(1).and_then(|n| source.lines().nth(n)) {
            let number = self.line.to_string();
            let gutter = " ".repeat(number.len());
            let (shown, caret) = window(line, self.column);
            let _ = writeln!(out, " {gutter} |");
            let _ = writeln!(out, " {number} | {shown}");
            let _ = writeln!(out, " {gutter} | {}^", " ".repeat(caret));
        }
        if !self.expected.is_empty() {
            let _ = writeln!(out, "   expected {}", self.expected);
        }
        out
    }

    fn headline(&self) -> String {
        if self.path.is_empty() { self.message.clone() } else { format!("{}: {}", self.path, self.message) }
    }
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.headline())?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        Ok(())
    }
}

/// Renders every problem, an empty line between two.
pub fn render_all(diagnostics: &[Diagnostic], source_name: &str, source: &str) -> String {
    diagnostics.iter().map(|diagnostic| diagnostic.render(source_name, source)).collect::<Vec<_>>().join("\n")
}

/// The part of a long line around a column, tabs as spaces, and the offset of the caret in it.
fn window(line: &str, column: usize) -> (String, usize) {
    const WIDTH: usize = 120;
    let chars: Vec<char> = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let at = column.saturating_sub(1).min(chars.len());
    let from = if chars.len() <= WIDTH { 0 } else { at.saturating_sub(WIDTH / 2) };
    let to = (from + WIDTH).min(chars.len());
    let mut shown = String::new();
    if from > 0 {
        shown.push('…');
    }
    shown.extend(&chars[from..to]);
    if to < chars.len() {
        shown.push('…');
    }
    (shown.trim_end().to_owned(), at - from + usize::from(from > 0))
}

/// The known name nearest to a misspelt one, when it is near enough to be meant.
pub(crate) fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = match found.chars().count() {
        0..=2 | 65.. => return None,
        3 => 1,
        length => (length / 3).clamp(2, 3),
    };
    known
        .into_iter()
        .map(|name| (distance(&found.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edit distance, where a swap of two neighbours counts once.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_its_line_with_a_caret() {
        let diagnostic = Diagnostic::new(Place { line: 2, column: 3 }, "graph", "unknown key `grpah`", "`graph`");
        let text = diagnostic.render("a.yaml", "ditto: 1\n  grpah: 2\n");
        let lines = [
            "a.yaml:2:3: graph: unknown key `grpah`",
            "   |",
            " 2 |   grpah: 2",
            "   |   ^",
            "   expected `graph`",
            "",
        ];
        assert_eq!(text, lines.join("\n"));
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let line = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let (shown, caret) = window(&line, 501);
        assert_eq!(shown.chars().nth(caret), Some('X'));
        assert!(shown.chars().count() < 130);
        assert_eq!(window("ab", 99), ("ab".to_owned(), 2));
    }

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        assert_eq!(nearest("grpah", ["graph", "graphs"]), Some("graph"));
        assert_eq!(nearest("maxiterations", ["maxIterations"]), Some("maxIterations"));
        assert_eq!(nearest("whit", ["node", "with", "when"]), Some("with"));
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(nearest("banana", ["graph", "when"]), None);
    }
}
