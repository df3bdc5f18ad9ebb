//! The real binary, as a person or a script uses it.

mod commands;
mod crash;
mod run;
mod server;
mod support;
