async fn log_in(user: u64) -> Result<(), Rejection> {
    'decided: {
        let pending = match ::ratelimit_runtime::__private::check(
            match const {
                &::ratelimit_runtime::Limit::on_error(
                    ::ratelimit_runtime::__private::without_permit(LOGIN),
                    ::ratelimit_runtime::OnError::Deny,
                )
            } {
                limit => {
                    static SITE: ::ratelimit_runtime::__private::Site = ::ratelimit_runtime::__private::Site::constant(
                        ::core::concat!(
                            ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                        ),
                    );
                    SITE.visit(limit)
                }
            },
            &user,
            1_u32,
        ) {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        Ok(())
    }
}
async fn query(user: u64) -> Result<(), Rejection> {
    'decided: {
        let pending = match {
            const {
                ::ratelimit_runtime::__private::decided_together(
                    &[
                        const { &::ratelimit_runtime::__private::limit(LOGIN) },
                        &::ratelimit_runtime::Limit::sliding(
                            "limit",
                            5_000,
                            ::ratelimit_runtime::__private::micros(86400000000u64),
                        ),
                    ],
                )
            };
            match ((), 1_u32, ::ratelimit_runtime::__private::key(&user)) {
                (__ratelimit_key, __ratelimit_cost, __ratelimit_key_1) => {
                    let _ = (&__ratelimit_key, __ratelimit_cost);
                    ::ratelimit_runtime::__private::check_all(
                        &::ratelimit_runtime::__private::LimitGroup::new([
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
                                    &::ratelimit_runtime::__private::without_permit(LOGIN)
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::constant(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key_1,
                                __ratelimit_cost,
                            ),
                            ::ratelimit_runtime::__private::CallPart::constant(
                                match const {
                                    &::ratelimit_runtime::Limit::sliding(
                                        ::core::concat!(
                                            ::core::concat!(::core::module_path!(), "::", "query"), "#2"
                                        ),
                                        5_000,
                                        ::ratelimit_runtime::__private::micros(86400000000u64),
                                    )
                                } {
                                    limit => {
                                        static SITE: ::ratelimit_runtime::__private::Site =
                                            ::ratelimit_runtime::__private::Site::new(
                                            ::core::concat!(
                                                ::core::file!(), ":", ::core::line!(), ":",
                                                ::core::column!()
                                            ),
                                        );
                                        SITE.visit(limit)
                                    }
                                },
                                &__ratelimit_key,
                                __ratelimit_cost,
                            ),
                        ]),
                    )
                }
            }
        } {
            ::core::option::Option::Some(pending) => pending,
            ::core::option::Option::None => break 'decided,
        };
        if let ::core::result::Result::Err(rejection) = pending.await {
            return ::ratelimit_runtime::__private::reject(rejection);
        }
    }
    {
        let () = ();
        Ok(())
    }
}
