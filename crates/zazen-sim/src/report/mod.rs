//! Results for people and programs: tables, plots and a page, as text.

pub mod csv;
pub mod page;
pub mod parquet;
pub mod svg;
