//! Reads JSON grammar: checks what comes in, and finds the parts of what was checked.

use std::ops::Range;

use super::{Json, JsonError};

/// Walks the direct parts of a checked container without looking inside them.
pub(super) struct Parts<'a> {
    json: &'a Json,
    scanner: Option<Scanner<'a>>,
}

impl<'a> Parts<'a> {
    pub(super) fn new(json: &'a Json, open: u8) -> Self {
        let scanner = (json.0.first() == Some(&open)).then(|| {
            let mut scanner = Scanner::new(&json.0, usize::MAX); // checked when it came in
            scanner.at = 1;
            scanner
        });
        Self { json, scanner }
    }

    fn begin(&mut self) -> Option<u8> {
        let scanner = self.scanner.as_mut()?;
        scanner.space();
        if scanner.peek() == Some(b',') {
            scanner.at += 1;
            scanner.space();
        }
        match scanner.peek() {
            None | Some(b']' | b'}') => None,
            next => next,
        }
    }

    pub(super) fn key(&mut self) -> Option<String> {
        self.begin()?;
        let scanner = self.scanner.as_mut()?;
        let range = scanner.skip_string();
        let key = decode_key(scanner.text.get(range)?);
        scanner.space();
        scanner.at += 1;
        scanner.space();
        Some(key)
    }

    pub(super) fn value(&mut self) -> Option<Json> {
        self.begin()?;
        let scanner = self.scanner.as_mut()?;
        let start = scanner.at;
        scanner.skip_value();
        Some(Json(self.json.0.slice(start..scanner.at)))
    }
}

fn decode_key(quoted: &[u8]) -> String {
    if quoted.contains(&b'\\') {
        serde_json::from_slice(quoted).unwrap_or_default()
    } else {
        String::from_utf8_lossy(quoted.get(1..quoted.len() - 1).unwrap_or_default()).into_owned()
    }
}

/// Reads JSON grammar over a byte text. `value` checks; the `skip_…` functions trust what was checked.
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    pub(super) at: usize,
    path: Vec<Step>,
    depth_max: usize,
}

enum Step {
    Key(Range<usize>),
    Index(usize),
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a [u8], depth_max: usize) -> Self {
        Self { text, at: 0, path: Vec::new(), depth_max }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> JsonError {
        let mut path = String::from("$");
        for step in &self.path {
            match step {
                Step::Key(range) => {
                    let key = decode_key(&self.text[range.clone()]);
                    path.push('.');
                    path.extend(key.chars().take(64));
                }
                Step::Index(n) => path.push_str(&format!("[{n}]")),
            }
            if path.len() > 512 {
                path.push('…');
                break;
            }
        }
        JsonError { reason: reason.into(), path, offset: self.at }
    }

    pub(super) fn utf8(&mut self) -> Result<(), JsonError> {
        if let Err(error) = std::str::from_utf8(self.text) {
            self.at = error.valid_up_to();
            return Err(self.error("invalid UTF-8"));
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(super) fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    pub(super) fn value(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Err(self.error("unexpected end")),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("expected a JSON value")),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.error("expected a JSON value"))
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if start == self.at { Err(self.error("expected a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One string with its quotes; returns its range.
    fn string(&mut self) -> Result<Range<usize>, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.error("unexpected end in a string")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) => return Err(self.error("control character in a string")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let unit = self.hex(self.at + 2)?;
                match unit {
                    0xd800..=0xdbff => {
                        let low = (self.text.get(self.at + 6..self.at + 8) == Some(b"\\u"))
                            .then(|| self.hex(self.at + 8))
                            .transpose()?;
                        if !matches!(low, Some(0xdc00..=0xdfff)) {
                            return Err(self.error("lone surrogate in a string"));
                        }
                        self.at += 12;
                    }
                    0xdc00..=0xdfff => return Err(self.error("lone surrogate in a string")),
                    _ => self.at += 6,
                }
                Ok(())
            }
            _ => Err(self.error("invalid escape in a string")),
        }
    }

    fn hex(&self, at: usize) -> Result<u16, JsonError> {
        self.text
            .get(at..at + 4)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.error("invalid escape in a string"))
    }

    fn enter(&mut self) -> Result<(), JsonError> {
        if self.path.len() >= self.depth_max {
            return Err(self.error(format!("nested deeper than {}", self.depth_max)));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self) -> Result<(), JsonError> {
        self.enter()?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for n in 0.. {
            self.path.push(Step::Index(n));
            self.space();
            self.value()?;
            self.path.pop();
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    break;
                }
                None => return Err(self.error("unexpected end in an array")),
                Some(_) => return Err(self.error("expected , or ]")),
            }
        }
        Ok(())
    }

    fn object(&mut self) -> Result<(), JsonError> {
        self.enter()?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut keys = Keys::default();
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let key = self.string()?;
            self.path.push(Step::Key(key.clone()));
            if !keys.insert(self.text, key) {
                return Err(self.error("duplicate key"));
            }
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("expected :"));
            }
            self.at += 1;
            self.space();
            self.value()?;
            self.path.pop();
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                None => return Err(self.error("unexpected end in an object")),
                Some(_) => return Err(self.error("expected , or }")),
            }
        }
    }

    fn skip_string(&mut self) -> Range<usize> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.at += 1,
                _ => {}
            }
        }
        start..self.at
    }

    fn skip_value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string();
                    if depth == 0 {
                        return;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return;
                    }
                }
                b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }
}

/// The keys seen in one object. Most objects are small: a list is faster than a set, until it is not.
#[derive(Default)]
struct Keys {
    few: Vec<Range<usize>>,
    many: Option<std::collections::HashSet<String>>,
}

impl Keys {
    fn insert(&mut self, text: &[u8], key: Range<usize>) -> bool {
        if let Some(many) = &mut self.many {
            return many.insert(decode_key(&text[key]));
        }
        let new = &text[key.clone()];
        let repeated = self.few.iter().any(|old| {
            let old = &text[old.clone()];
            old == new || ((old.contains(&b'\\') || new.contains(&b'\\')) && decode_key(old) == decode_key(new))
        });
        self.few.push(key);
        if self.few.len() > 16 {
            self.many = Some(self.few.drain(..).map(|range| decode_key(&text[range])).collect());
        }
        !repeated
    }
}
