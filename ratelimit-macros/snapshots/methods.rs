impl<T: AsRef<str>> Pool<T> {
    #[rate_limit(period = "1h", threshold = Self::SIZE, cost = Self::SIZE, key = self.of.as_ref())]
    async fn take<'a, U: 'a>(&'a self, with: U) -> Result<(&'a T, U), Rejection> {
        Ok((&self.of, with))
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn close(mut self: Box<Self>, (first, _): (u64, u64)) -> Option<u64> {
        self.closed = true;
        Some(first)
    }
}

trait Greeter {
    #[rate_limit(period = 1, threshold = 1, key = "{name}")]
    async fn greet(&mut self, name: impl Display) -> anyhow::Result<String> {
        Ok(format!("hi {name}"))
    }
}
