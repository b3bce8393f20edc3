impl<T: AsRef<str>> Pool<T> {
    async fn take<'a, U: 'a>(&'a self, with: U) -> Result<(&'a T, U), Rejection> {
        'decided: {
            let __rate_limit_pending = match match (
                ::ratelimit_runtime::__private::key(&self.of.as_ref()),
                ::ratelimit_runtime::__private::cost(Self::SIZE),
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
                                                    ::core::concat!(::core::module_path!(), "::", "take"),
                                                    Self::SIZE,
                                                    ::ratelimit_runtime::__private::micros(3600000000u64),
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
            Ok((&self.of, with))
        }
    }
    async fn close(mut self: Box<Self>, (first, _): (u64, u64)) -> Option<u64> {
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
                                                    ::core::concat!(::core::module_path!(), "::", "close"),
                                                    1,
                                                    ::ratelimit_runtime::__private::micros(3600000000u64),
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
            self.closed = true;
            Some(first)
        }
    }
}
trait Greeter {
    async fn greet(&mut self, name: impl Display) -> anyhow::Result<String> {
        'decided: {
            let __rate_limit_pending = match match (
                ::ratelimit_runtime::__private::Format(|
                    __rate_limit_out: &mut ::ratelimit_runtime::KeyWriter<'_>|
                {
                    ::ratelimit_runtime::__private::FormatArgument(
                            &name,
                            ::ratelimit_runtime::__private::Formatted(
                                ::core::format_args!("{}", name),
                            ),
                        )
                        .write_argument(__rate_limit_out);
                }),
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
                                                    ::core::concat!(::core::module_path!(), "::", "greet"),
                                                    1,
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
            Ok(format!("hi {name}"))
        }
    }
}
