//! Finds the `${ … }` parts of a text.

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Written as it is.
    Text(String),
    /// What stands between `${` and `}`, and where it begins, in characters from the start of the text.
    Expression { source: String, offset: usize },
}

/// Splits a text. `$${` stands for a literal `${`.
///
/// # Errors
/// The offset, in characters, of a `${` that is never closed.
pub(crate) fn split(text: &str) -> Result<Vec<Piece>, usize> {
    let chars: Vec<char> = text.chars().collect();
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut at = 0;
    while at < chars.len() {
        if chars[at..].starts_with(&['$', '$', '{']) {
            plain.push_str("${");
            at += 3;
        } else if chars[at..].starts_with(&['$', '{']) {
            let end = closing(&chars, at + 2).ok_or(at)?;
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Expression { source: chars[at + 2..end].iter().collect(), offset: at + 2 });
            at = end + 1;
        } else {
            plain.push(chars[at]);
            at += 1;
        }
    }
    if !plain.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// The brace that closes an expression: braces in its strings and comments do not count.
fn closing(chars: &[char], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    while at < chars.len() {
        match chars[at] {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            '/' if chars.get(at + 1) == Some(&'/') => {
                at += chars[at..].iter().position(|c| *c == '\n')?;
            }
            quote @ ('"' | '\'') => {
                let raw = at > 0 && matches!(chars[at - 1], 'r' | 'R');
                at = end_of_string(chars, at, quote, raw)?;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The position after a string literal that begins at `at`.
fn end_of_string(chars: &[char], at: usize, quote: char, raw: bool) -> Option<usize> {
    let triple = [quote; 3];
    let (mut at, long) = if chars[at..].starts_with(&triple) { (at + 3, true) } else { (at + 1, false) };
    while at < chars.len() {
        if chars[at] == '\\' && !raw {
            at += 2;
        } else if long && chars[at..].starts_with(&triple) {
            return Some(at + 3);
        } else if !long && chars[at] == quote {
            return Some(at + 1);
        } else {
            at += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(source: &str, offset: usize) -> Piece {
        Piece::Expression { source: source.into(), offset }
    }

    #[test]
    fn expressions_end_at_their_own_brace() {
        #[rustfmt::skip]
        let table: &[(&str, Vec<Piece>)] = &[
            ("", vec![Piece::Text("".into())]),
            ("plain $ {x}", vec![Piece::Text("plain $ {x}".into())]),
            ("${a}", vec![expression("a", 2)]),
            ("x${ a }y", vec![Piece::Text("x".into()), expression(" a ", 3), Piece::Text("y".into())]),
            ("$${a}", vec![Piece::Text("${a}".into())]),
            ("${ {'a': {}} }", vec![expression(" {'a': {}} ", 2)]),
            (r#"${ "}" + '\'}' }"#, vec![expression(r#" "}" + '\'}' "#, 2)]),
            ("${ '''a'}''' }", vec![expression(" '''a'}''' ", 2)]),
            (r"${ r'\' }", vec![expression(r" r'\' ", 2)]),
            ("${a}${b}", vec![expression("a", 2), expression("b", 6)]),
            ("${ a // }\n}", vec![expression(" a // }\n", 2)]),
        ];
        for (text, pieces) in table {
            assert_eq!(split(text).as_ref(), Ok(pieces), "{text}");
        }
        assert_eq!(split("ü${ a"), Err(1));
        assert_eq!(split("${ '}"), Err(0));
    }
}
