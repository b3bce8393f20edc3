fn call<'life0, 'async_trait>(
    &'life0 self,
) -> ::core::pin::Pin<
    Box<dyn ::core::future::Future<Output = Option<()>> + Send + 'async_trait>,
>
where
    'life0: 'async_trait,
    Self: 'async_trait,
{
    Box::pin(async move {
        'decided: {
            let __rate_limit_pending = match match (
                ::ratelimit_runtime::__private::key(&self.id),
                1_u64,
            ) {
                (__rate_limit_key_1, __rate_limit_cost_1) => {
                    ::ratelimit_runtime::__private::check(
                        &::ratelimit_runtime::__private::AnnotatedCall::new(
                            ::core::option::Option::None,
                            [
                                (
                                    &{
                                        static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                            ::ratelimit_runtime::__private::SiteName::Default,
                                            false,
                                        );
                                        __RATE_LIMIT_SITE
                                            .visit(const {
                                                &::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(::core::module_path!(), "::", "call"),
                                                    10,
                                                    ::ratelimit_runtime::__private::micros(1000000u64),
                                                )
                                            })
                                    },
                                    &__rate_limit_key_1,
                                    __rate_limit_cost_1,
                                ),
                            ],
                        ),
                    )
                }
            } {
                ::core::option::Option::Some(__rate_limit_pending) => {
                    __rate_limit_pending
                }
                ::core::option::Option::None => break 'decided,
            };
            if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
                .await
            {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
        {
            let () = ();
            let __self = self;
            None
        }
    })
}
fn patterns<'a>(
    __arg0: Path<u64>,
) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + 'a>> {
    Box::pin(async move {
        let Path(id) = {
            let __arg0 = __arg0;
            __arg0
        };
        'decided: {
            let __rate_limit_pending = match match (
                ::ratelimit_runtime::__private::key(&id),
                1_u64,
            ) {
                (__rate_limit_key_1, __rate_limit_cost_1) => {
                    ::ratelimit_runtime::__private::check(
                        &::ratelimit_runtime::__private::AnnotatedCall::new(
                            ::core::option::Option::None,
                            [
                                (
                                    &{
                                        static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                            ::ratelimit_runtime::__private::SiteName::Default,
                                            false,
                                        );
                                        __RATE_LIMIT_SITE
                                            .visit(const {
                                                &::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(::core::module_path!(), "::", "patterns"),
                                                    2,
                                                    ::ratelimit_runtime::__private::micros(30000000u64),
                                                )
                                            })
                                    },
                                    &__rate_limit_key_1,
                                    __rate_limit_cost_1,
                                ),
                            ],
                        ),
                    )
                }
            } {
                ::core::option::Option::Some(__rate_limit_pending) => {
                    __rate_limit_pending
                }
                ::core::option::Option::None => break 'decided,
            };
            if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
                .await
            {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
        {
            let () = ();
            if let Some(__ret) = None::<Option<u64>> {
                return __ret;
            }
            let __ret: Option<u64> = { Some(id) };
            __ret
        }
    })
}
fn by_hand() -> Pin<Box<dyn Future<Output = Option<u64>>>> {
    Box::pin(async move {
        'decided: {
            let __rate_limit_pending = match match ((), 1_u64) {
                (__rate_limit_key_1, __rate_limit_cost_1) => {
                    ::ratelimit_runtime::__private::check(
                        &::ratelimit_runtime::__private::AnnotatedCall::new(
                            ::core::option::Option::None,
                            [
                                (
                                    &{
                                        static __RATE_LIMIT_SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                            ::ratelimit_runtime::__private::SiteName::Default,
                                            false,
                                        );
                                        __RATE_LIMIT_SITE
                                            .visit(const {
                                                &::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(::core::module_path!(), "::", "by_hand"),
                                                    2,
                                                    ::ratelimit_runtime::__private::micros(30000000u64),
                                                )
                                            })
                                    },
                                    &__rate_limit_key_1,
                                    __rate_limit_cost_1,
                                ),
                            ],
                        ),
                    )
                }
            } {
                ::core::option::Option::Some(__rate_limit_pending) => {
                    __rate_limit_pending
                }
                ::core::option::Option::None => break 'decided,
            };
            if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending
                .await
            {
                return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
            }
        }
        {
            let () = ();
            let (a, b) = { after_the_check() };
            Some(a + b)
        }
    })
}
