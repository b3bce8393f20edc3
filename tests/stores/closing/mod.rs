//! Keys that are closed until a moment: how their calls are decided, what happens to their counts, and when other
//! processes obey.

mod counts;
mod keys;
mod processes;
