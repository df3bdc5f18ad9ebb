//! `${ … }`: expressions in CEL, compiled once and evaluated within limits.
//!
//! Syntax and tree come from the `cel` crate; evaluation is done here, because three promises need it: a value that is
//! only passed on keeps its bytes, only what is read is looked into, and every step and byte is counted.

mod evaluate;
mod functions;
mod lower;
mod operators;
#[cfg(test)]
mod oracle;
mod split;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use evaluate::evaluate;
pub(crate) use lower::{Expr, Names, Problem, Root, compile};
pub(crate) use split::{Piece, split};
pub(crate) use value::{Fault, Meter};
