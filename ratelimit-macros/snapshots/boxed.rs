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

#[rate_limit(period = 30, threshold = 2, key = id)]
fn patterns<'a>(__arg0: Path<u64>) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + 'a>> {
    Box::pin(async move {
        if let Some(__ret) = None::<Option<u64>> {
            return __ret;
        }
        let Path(id) = {
            let __arg0 = __arg0;
            __arg0
        };
        let __ret: Option<u64> = { Some(id) };
        __ret
    })
}

#[rate_limit(period = 30, threshold = 2)]
fn by_hand() -> Pin<Box<dyn Future<Output = Option<u64>>>> {
    Box::pin(async move {
        let (a, b) = { after_the_check() };
        Some(a + b)
    })
}
