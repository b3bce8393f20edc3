//! A log in memory, for the events of a test.

use std::io;
use std::sync::{Arc, Mutex};

/// What was written. Clones share it.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn writer(&self) -> impl Fn() -> Self + Send + Sync + use<> {
        let log = self.clone();
        move || log.clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8")
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
