fn call(id: u64) -> Result<u64, Rejection> {
    {
        let __rate_limit_decided = match (
            ::ratelimit_runtime::__private::key(&id),
            1_u64,
        ) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check_blocking(
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
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(::core::module_path!(), "::", "call"),
                                                    2,
                                                    ::ratelimit_runtime::__private::micros(30000000u64),
                                                ),
                                                ::ratelimit_runtime::Scope::Process,
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
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_decided {
            return ::ratelimit_runtime::__private::reject(__rate_limit_rejection);
        }
    }
    {
        let () = ();
        Ok(id)
    }
}
fn hidden() -> impl Debug {
    {
        let __rate_limit_decided = match ((), 1_u64) {
            (__rate_limit_key_1, __rate_limit_cost_1) => {
                ::ratelimit_runtime::__private::check_blocking(
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
                                            &::ratelimit_runtime::Limit::scope(
                                                ::ratelimit_runtime::Limit::sliding(
                                                    ::core::concat!(::core::module_path!(), "::", "hidden"),
                                                    2,
                                                    ::ratelimit_runtime::__private::micros(30000000u64),
                                                ),
                                                ::ratelimit_runtime::Scope::Process,
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
        };
        if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_decided {
            return ::core::result::Result::Err(__rate_limit_rejection);
        }
    }
    let __rate_limit_output = (move || {
        {
            let () = ();
            1
        }
    })();
    ::core::result::Result::<_, ::ratelimit_runtime::Rejection>::Ok(__rate_limit_output)
}
