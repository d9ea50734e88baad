//! Benchmarks of weir. The whole proxy beside its peers is `src/bin/peers`; measurements of single parts belong into
//! `benches/`.
