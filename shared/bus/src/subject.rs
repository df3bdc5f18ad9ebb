//! Subjects and patterns: tokens between dots, `*` for one token, `>` for one or more at the end.

/// Whether a message may be sent to this subject: no empty token, no wildcard, no white space.
pub(crate) fn is_subject(text: &str) -> bool {
    is_pattern(text) && text.split('.').all(|token| token != "*" && token != ">")
}

/// Whether this is a subject or a pattern: no empty token, no white space, `>` only at the end.
pub(crate) fn is_pattern(text: &str) -> bool {
    if text.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
        return false;
    }
    let mut tokens = text.split('.').peekable();
    while let Some(token) = tokens.next() {
        if token.is_empty() || (token == ">" && tokens.peek().is_some()) {
            return false;
        }
    }
    true
}

/// Whether the pattern has a wildcard at all.
pub(crate) fn has_wildcard(pattern: &str) -> bool {
    pattern.split('.').any(|token| token == "*" || token == ">")
}

/// Whether the pattern takes the subject.
pub(crate) fn matches(pattern: &str, subject: &str) -> bool {
    let mut wanted = pattern.split('.');
    let mut given = subject.split('.');
    loop {
        match (wanted.next(), given.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

/// Whether some subject is taken by both patterns.
pub(crate) fn overlap(a: &str, b: &str) -> bool {
    let mut left = a.split('.');
    let mut right = b.split('.');
    loop {
        match (left.next(), right.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(x), Some(y)) if x == y => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_take_subjects_as_nats_does() {
        #[rustfmt::skip]
        let table = [
            ("a.b",   "a.b",     true),
            ("a.b",   "a.c",     false),
            ("a.*",   "a.b",     true),
            ("a.*",   "a",       false),
            ("a.*",   "a.b.c",   false),
            ("a.>",   "a.b.c",   true),
            ("a.>",   "a",       false),
            (">",     "a",       true),
            ("*.b.*", "a.b.c",   true),
            ("*.b.*", "a.x.c",   false),
            ("a",     "a.b",     false),
        ];
        for (pattern, subject, expected) in table {
            assert_eq!(matches(pattern, subject), expected, "{pattern} and {subject}");
        }
    }

    #[test]
    fn overlap_is_a_common_subject() {
        #[rustfmt::skip]
        let table = [
            ("a.b",   "a.b",   true),
            ("a.b",   "a.c",   false),
            ("a.*",   "*.b",   true),
            ("a.*.c", "a.b",   false),
            ("a.>",   "a.b.c", true),
            ("a.>",   "a",     false),
            ("a.>",   "b.>",   false),
            (">",     "x.y",   true),
        ];
        for (a, b, expected) in table {
            assert_eq!(overlap(a, b), expected, "{a} and {b}");
            assert_eq!(overlap(b, a), expected, "{b} and {a}");
        }
    }

    #[test]
    fn malformed_subjects_are_seen() {
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a\n", "a.>.b", "\u{0}"] {
            assert!(!is_pattern(bad), "{bad:?}");
        }
        assert!(is_pattern("a.*.>") && !is_subject("a.*.>") && !is_subject("a.>"));
        assert!(is_subject("ditto.jobs.INTERACTION.ACT.TOOL"));
        assert!(has_wildcard("a.*") && has_wildcard(">") && !has_wildcard("a.b*"));
    }
}
