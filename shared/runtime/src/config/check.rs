//! Ranges and rules of a section, each problem with the place its value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use super::path::{nearest_place, relative};
use super::problem::{Place, Problem};
use super::sections::Section;
use super::yaml::{Node, join};

/// What a section's struct demands beyond its types: ranges, and values that must fit together.
pub trait Validate {
    /// Reports what does not hold.
    fn validate(&self, check: &mut Check<'_>);
}

/// Collects what [`Validate`] finds, each with the place the value came from.
#[derive(Debug)]
pub struct Check<'a> {
    pub(super) base: String,
    pub(super) section: &'a Section,
    pub(super) original: &'a Node,
    pub(super) used: &'a BTreeMap<String, String>,
    pub(super) found: Vec<Problem>,
}

impl Check<'_> {
    /// Reports `expected` (as in "a text that is not empty") for `field` unless `holds`.
    pub fn that(&mut self, field: &str, holds: bool, expected: impl fmt::Display) {
        if !holds {
            self.push(field, format!("expected {expected}"));
        }
    }

    /// Reports `field` unless its value is in the range, both ends included.
    pub fn range<T: PartialOrd + fmt::Display>(&mut self, field: &str, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.push(field, format!("expected {} to {}, found {value}", range.start(), range.end()));
        }
    }

    /// Validates a part of the section; inside it, field names start from there.
    pub fn nested(&mut self, field: &str, part: &impl Validate) {
        let base = join(&self.base, field);
        let outer = std::mem::replace(&mut self.base, base);
        part.validate(self);
        self.base = outer;
    }

    fn push(&mut self, field: &str, message: String) {
        let path = join(&self.base, field);
        let place = match self.used.iter().find(|(_, set)| **set == path) {
            Some((variable, _)) => Place::Environment(variable.clone()),
            None => nearest_place(self.original, relative(self.section.path, &path)),
        };
        self.found.push(Problem { path, place, message });
    }
}
