//! Loop definitions as data: YAML or JSON with CEL expressions, checked completely and compiled to a plan.
//!
//! [`compile`] takes a text and gives a [`Definition`] or every [`Diagnostic`] at once. The format is described in
//! `docs/definitions.md`.

mod budget;
mod canonical;
mod compile;
mod diagnostic;
mod document;
mod duration;
mod expression;
mod key;
mod nodes;
mod reader;
mod schema;
mod stack;
mod tasks;
mod template;

pub use budget::CALL_LIMIT;
pub use compile::{Definition, compile, compile_with};
pub use diagnostic::{Diagnostic, Place, render_all};
pub use key::{KeyRule, key_of_request};
