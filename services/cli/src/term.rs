//! Colours only where a person looks, tables, times.

use std::io::IsTerminal;

/// What a text means; decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it is.
    Plain,
    /// Went well.
    Good,
    /// Went wrong.
    Bad,
    /// Wants attention.
    Warn,
    /// Less important.
    Dim,
    /// A heading or a hint.
    Note,
    /// Stands out.
    Strong,
}

/// Paints, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    pub(crate) fn stdout() -> Self {
        Self::of(std::io::stdout().is_terminal())
    }

    pub(crate) fn stderr() -> Self {
        Self::of(std::io::stderr().is_terminal())
    }

    /// Paints nothing.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { on: false }
    }

    fn of(terminal: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: terminal && !set("NO_COLOR") && !dumb }
    }

    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Bad => "31;1",
            Tone::Warn => "33",
            Tone::Dim => "2",
            Tone::Note => "36",
            Tone::Strong => "1",
        };
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The tone of a status of a run, a task or a receipt.
pub(crate) fn status_tone(status: &str) -> Tone {
    match status {
        "completed" | "succeeded" => Tone::Good,
        "failed" => Tone::Bad,
        "unknown" | "needs-human" | "partial" | "parked" | "cancelling" => Tone::Warn,
        "cancelled" | "skipped" => Tone::Dim,
        _ => Tone::Plain,
    }
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self { text: clean(text.as_ref()), tone: Tone::Plain }
    }

    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: clean(text.as_ref()), tone }
    }

    /// A status in its own tone.
    pub(crate) fn status(text: impl AsRef<str>) -> Self {
        let tone = status_tone(text.as_ref());
        Self::toned(text, tone)
    }
}

/// Columns aligned, two spaces apart, the heading dim. Without rows only what is said for none.
pub(crate) fn table(paint: Paint, headings: &[&str], rows: &[Vec<Cell>], none: &str) -> String {
    if rows.is_empty() {
        return format!("{none}\n");
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
        cells.chain(headings.get(column).map(|heading| heading.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = (String, Tone)>| {
        let mut pending = 0;
        for (column, (text, tone)) in cells.enumerate() {
            if column > 0 {
                pending += 2;
            }
            // Spaces are written only before something: nothing trails.
            if !text.is_empty() {
                out.push_str(&" ".repeat(pending));
                out.push_str(&paint.paint(tone, &text));
                pending = 0;
            }
            pending += widths.get(column).copied().unwrap_or(0).saturating_sub(text.chars().count());
        }
        out.push('\n');
    };
    line(&mut headings.iter().map(|heading| ((*heading).to_owned(), Tone::Dim)));
    for row in rows {
        line(&mut row.iter().map(|cell| (cell.text.clone(), cell.tone)));
    }
    out
}

/// Without characters that could steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// As [`clean`], but line breaks stay.
pub(crate) fn lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Shortened to so many characters.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A span of time as people say it: `4 ms`, `1.2 s`, `3 min 5 s`, `2 h 4 min`, `3 d`.
pub(crate) fn span(ms: i64) -> String {
    let ms = ms.max(0);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
        3_600_000..86_400_000 => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{} d {} h", ms / 86_400_000, ms % 86_400_000 / 3_600_000),
    }
}

/// Milliseconds since 1970 as `2026-11-30 17:44:45Z`.
pub(crate) fn time(ms: i64) -> String {
    let (days, in_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000) / 1_000);
    // Days to civil date: eras of 400 years that begin in March.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", in_day / 3_600, in_day % 3_600 / 60, in_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Paint = Paint::plain();

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let rows = [vec![Cell::new("a"), Cell::status("failed")], vec![Cell::new("long\u{1b}[31m"), Cell::new("")]];
        let text = table(OFF, &["NAME", "STATUS"], &rows, "none");
        assert_eq!(text, "NAME       STATUS\na          failed\nlong\u{fffd}[31m\n");
        assert_eq!(table(OFF, &["NAME"], &[], "no runs"), "no runs\n");
    }

    #[test]
    fn colours_are_codes_around_the_text_or_nothing() {
        assert_eq!(Paint { on: true }.paint(Tone::Good, "ok"), "\x1b[32mok\x1b[0m");
        assert_eq!(OFF.paint(Tone::Good, "ok"), "ok");
    }

    #[test]
    fn times_are_read_as_the_table_says() {
        #[rustfmt::skip]
        let table = [
            (0,                 "1970-01-01 00:00:00Z"),
            (951_782_400_000,   "2000-02-29 00:00:00Z"),
            (1_796_060_685_123, "2026-11-30 17:44:45Z"),
            (-1,                "1969-12-31 23:59:59Z"),
        ];
        for (ms, text) in table {
            assert_eq!(time(ms), text);
        }
        assert_eq!(span(999), "999 ms");
        assert_eq!(span(1_250), "1.2 s");
        assert_eq!(span(185_000), "3 min 5 s");
        assert_eq!(span(90_000_000), "1 d 1 h");
    }
}
