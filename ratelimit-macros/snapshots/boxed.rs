#[rate_limit(period = 1, threshold = 10, key = self.id)]
fn call<'life0, 'async_trait>(
    &'life0 self,
) -> ::core::pin::Pin<Box<dyn ::core::future::Future<Output = Option<()>> + Send + 'async_trait>>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        let __self = self;
        None
    })
}
