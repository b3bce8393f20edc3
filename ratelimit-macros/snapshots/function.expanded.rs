async fn plain() -> Result<(), Rejection> {
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
                                                ::core::concat!(::core::module_path!(), "::", "plain"),
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
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
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
        Ok(())
    }
}
/// Documented.
#[must_use]
pub(crate) async fn list<'a, T: AsRef<str>>(
    tenant: &'a T,
    user: User,
    rows: u64,
) -> Option<&'a str>
where
    T: Sync,
{
    #![allow(unused)]
    'decided: {
        let __rate_limit_pending = match match (
            ::ratelimit_runtime::__private::key(&(&tenant, &user.id)),
            ::ratelimit_runtime::__private::cost(rows / 100),
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
                                        ::ratelimit_runtime::__private::SiteName::Chosen,
                                        false,
                                    );
                                    __RATE_LIMIT_SITE
                                        .visit(const {
                                            &::ratelimit_runtime::Limit::burst(
                                                ::ratelimit_runtime::Limit::token_bucket(
                                                    "list",
                                                    10,
                                                    ::ratelimit_runtime::__private::micros(1000000u64),
                                                ),
                                                20,
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
            ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
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
        Some(tenant.as_ref())
    }
}
