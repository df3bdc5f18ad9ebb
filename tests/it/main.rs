//! Tests that need more than one crate: real servers, real processes, a whole fleet. One module per subject.

mod servers;
