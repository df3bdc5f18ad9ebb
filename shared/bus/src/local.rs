//! The bus inside one process.
