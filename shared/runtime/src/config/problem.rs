//! What is wrong with a configuration: a list, never just the first finding.

use std::collections::HashSet;
use std::fmt;

/// Most problems that are kept; the rest of an utterly wrong file adds nothing.
pub(super) const MAX_PROBLEMS: usize = 200;

/// Where a problem is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the file, both counted from 1.
    File {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// In the environment variable of this name.
    Environment(String),
    /// Nowhere in particular: a missing value, or the file as a whole.
    Whole,
}

/// One thing to correct.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The key, as in `workers.interaction.toolTimeoutMs`; empty for the file as a whole.
    pub path: String,
    /// Where it is written.
    pub place: Place,
    /// What was expected and what was found instead. Never a text value: it might be a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { line, column } => write!(f, "{line}:{column}: ")?,
            Place::Environment(name) => write!(f, "{name}: ")?,
            Place::Whole => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// What is wrong with the configuration, in the order of the file, then the environment; at most 200 problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    file: Option<String>,
    problems: Vec<Problem>,
}

impl ConfigErrors {
    pub(super) fn new(file: Option<String>, problems: Vec<Problem>) -> Self {
        let mut errors = Self { file, problems: Vec::with_capacity(problems.len()) };
        errors.extend(problems);
        errors
    }

    fn extend(&mut self, problems: Vec<Problem>) {
        let mut seen = HashSet::new();
        self.problems.extend(problems);
        self.problems.retain(|problem| seen.insert(problem.clone()));
        self.problems.sort_by_key(|problem| match &problem.place {
            Place::File { line, column } => (0, *line, *column, String::new()),
            Place::Whole => (1, 0, 0, problem.path.clone()),
            Place::Environment(name) => (2, 0, 0, name.clone()),
        });
        self.problems.truncate(MAX_PROBLEMS);
    }

    /// Adds what another section found; a problem both know is kept once.
    pub fn merge(&mut self, other: ConfigErrors) {
        self.file = self.file.take().or(other.file);
        self.extend(other.problems);
    }

    /// The problems: at least one, at most 200.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The file that was read, if any.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let (Some(file), Place::File { .. }) = (&self.file, &problem.place) {
                write!(f, "{file}:")?;
            } else if let (Some(file), Place::Whole) = (&self.file, &problem.place) {
                write!(f, "{file}: ")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
